"""Rewrites a program's imports for the tf2 form: removes stock's and adds those of the library."""

from __future__ import annotations

import libcst as cst

from estimator_bridge.migrate.stock_replacements import is_of_tensorflow
from estimator_bridge.migrate.syntax import import_statements, names
from estimator_bridge.migrate.syntax.import_statements import ImportStatement
from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram, code_of
from estimator_bridge.migrate.tf2.tf2_edits import Tf2Edits

_RULE = "import-stock"


def has_stock(program: ParsedProgram, statement: cst.ImportFrom) -> bool:
    (imported,) = import_statements.read(statement, program.modules)
    if imported.place or imported.by_use:
        return True
    module = program.modules.absolute(imported.full)
    names_of = program.modules.names
    below = [full for name, full in names_of.items() if name.rpartition(".")[0] == module]
    return any(map(is_of_tensorflow, below))


def remove(tf2_edits: Tf2Edits, statement: ImportStatement) -> None:
    imported = import_statements.read(statement, tf2_edits.program.modules)
    kept = {
        each.full
        for each in imported
        if not (each.place or each.by_use) or each.bound in tf2_edits.left
    }
    if len(kept) == len({each.full for each in imported}):
        return
    edits, program = tf2_edits.edits, tf2_edits.program
    line = program.statement_of(statement)
    if kept:
        rest = import_statements.only(statement, kept, program.modules)
        edits.replace_node(statement, code_of(rest))
    elif len(line.body) > 1:  # the line contains other statements
        edits.replace_node(statement, "pass")
    else:
        position, block = program.position(line), program.parent(line)
        alone = isinstance(block, cst.IndentedBlock) and len(block.body) == 1
        new = f"{edits.indentation(line)}pass\n" if alone else ""
        edits.replace(*edits.lines(position.start.line, position.end.line), new)
    tf2_edits.say(statement, "import", code_of(statement), "", _RULE)


def insert(tf2_edits: Tf2Edits) -> list[str]:
    program, edits = tf2_edits.program, tf2_edits.edits
    statements = list(program.module.body)
    added = [
        import_statements.of_names(module, sorted(bound))
        for module, bound in sorted(tf2_edits.imported.items())
    ]
    lines = "".join(f"{each}\n" for each in added)
    of_tensorflow = [each for each in statements if import_statements.of_tensorflow(each)]
    rest = [each for each in statements if not import_statements.is_preface(each)]
    if not rest:
        return []
    first = statements.index((of_tensorflow or rest)[0])
    last = import_statements.last_of_tensorflow(statements, first)
    start = edits.line_start(program.line(statements[first]))
    if last < first:  # the import is missing, or in a block that may not run
        while import_statements.is_import_line(statements[last + 1]) and not of_tensorflow:
            last += 1
    if last < first:
        edits.insert(start, f"{names.START}{lines}\n")
        return added
    edits.insert(start, f"{names.START}\n")
    after = edits.line_start(program.last_line(statements[last]) + 1)
    edits.insert(after, lines)
    return added
