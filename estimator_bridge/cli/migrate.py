"""Rewrites a program so that it imports the bridge, or so that it trains in TensorFlow 2.

--form bridge, for any program: imports and full names of stock lead to the bridge; everything else
stays as it is. The new program is NAME_bridge.py.

--form keras, for programs with one TPUEstimator: a keras.Model with the layers of tf2_engine.keras
replaces the model_fn and the estimator; nothing of tf.compat.v1 is left. The new program is
NAME_keras.py.

--form tf2, for programs with a TPUEstimator: the input functions, columns, the embedding spec and
the model_fn stay; the class Trainer of the library tf2_engine.training, with a strategy, a training
loop and checkpoints of TensorFlow 2, replaces the estimator. The new program is NAME_tf2.py. It
resumes from a converted checkpoint; given one that is not converted, it shows the command that
converts it.

Comments and formatting stay as they are. The report lists by line what was rewritten, and what is
left to do by hand; the program has a comment there.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import pathlib
import shutil
import sys
import tokenize

from estimator_bridge import errors


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    form = (
        "the new program: the same with imports of the bridge (default), in TensorFlow 2, or Keras"
    )
    parser.add_argument("--form", choices=("bridge", "tf2", "keras"), default="bridge", help=form)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", "-o", metavar="FILE", help="write the new program to FILE")
    where.add_argument("--in_place", action="store_true", help="overwrite the program")
    where.add_argument("--diff", action="store_true", help="print a diff and write nothing")
    parser.add_argument("--force", action="store_true", help="overwrite an existing FILE")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add = parser.add_argument
    checked = "keep the new program, of the tf2 form, only if it can make one step of each training"
    add("--check-run", action="store_true", help=checked)
    add("--check", action="store_true", help="write nothing: print the report, or all blockers")
    listed = "print the rules of the tf2 form: id, class, what becomes of it"
    add("--list-rules", action="store_true", help=listed)
    tf1 = (
        "whether it is a program of TensorFlow 1, which is refused (default: if its source names "
        "what only TensorFlow 1 has)"
    )
    add("--tf1", action=argparse.BooleanOptionalAction, default=None, help=tf1)
    add("script", nargs="?", help="the program")
    arguments = "the program's own arguments, for --check-run"
    add("arguments", nargs=argparse.REMAINDER, help=arguments)


def execute(options: argparse.Namespace) -> None:
    """Writes the new program and prints the report."""
    try:
        from estimator_bridge import migrate
        from estimator_bridge.migrate import tf2_rules

        forms = {
            "bridge": migrate.adopt,
            "tf2": migrate.migrate,
            "keras": migrate.migrate_to_keras,
        }
        rewrite = forms[options.form]
    except ModuleNotFoundError as error:
        raise errors.InvalidInput(
            f"migrate: {error}. Install the extra: pip install 'estimator-bridge[migrate]'."
        ) from error
    if options.list_rules:
        print(*tf2_rules.lines(), sep="\n")
        return
    path = _program(options)
    source, encoding = _read(path)
    _refuse_tf1(options)
    rewritten = rewrite(source, options.script)
    compile(rewritten.source, options.script, "exec", dont_inherit=True)
    if options.diff:
        old, new = (text.splitlines(keepends=True) for text in (source, rewritten.source))
        names = options.script, f"{options.script}, rewritten"
        sys.stdout.writelines(difflib.unified_diff(old, new, *names))
    elif not options.check:
        target = path.with_name(f"{path.stem}_{options.form}{path.suffix}")
        if options.in_place or options.output:
            target = path if options.in_place else pathlib.Path(options.output)
        _write(target, path, rewritten.source.encode(encoding), options)
    output = sys.stderr if options.diff else sys.stdout
    if options.json:
        print(json.dumps(rewritten.as_dict(), indent=2), file=output)
    else:
        print(*rewritten.lines, sep="\n", file=output)


def _program(options: argparse.Namespace) -> pathlib.Path:
    if options.script is None:
        raise errors.InvalidInput("migrate: give a program.")
    path = pathlib.Path(options.script)
    if not path.is_file():
        raise errors.InvalidInput(f"migrate: there is no program {options.script!r}.")
    if options.arguments and not options.check_run:
        raise errors.InvalidInput(
            f"migrate: {options.arguments} would be the program's own arguments, which only "
            "--check-run needs. Put options of migrate before the program."
        )
    if options.check_run and (options.form != "tf2" or options.diff or options.check):
        raise errors.InvalidInput(
            "migrate: --check-run is for --form tf2, without --diff and --check."
        )
    return path


def _refuse_tf1(options: argparse.Namespace) -> None:
    """Raises Untranslatable for a program of TensorFlow 1: in no form could it run by itself."""
    from estimator_bridge.run.tf1 import detection

    use = detection.find_use(options.script) if options.tf1 is None else None
    if use is None and not options.tf1:
        return
    cause = "is a program of TensorFlow 1 (--tf1)"
    if use is not None:
        cause = f"names {use}, which TensorFlow 2 lacks"
    raise errors.Untranslatable(
        f"migrate: {options.script} {cause}: its {options.form} form could not run by itself. "
        f"Run it as it is: estimator-bridge run --tf1 {options.script}. Or port such names to "
        "tf.compat.v1 first, which TensorFlow's tf_upgrade_v2 does for all but tf.contrib, and "
        "migrate then; --no-tf1 rewrites it all the same."
    )


def _read(path: pathlib.Path) -> tuple[str, str]:
    """Returns a source with its line ends, and its encoding (PEP 263)."""
    content = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding), encoding
    except (SyntaxError, UnicodeDecodeError) as error:
        raise errors.InvalidInput(f"migrate: {path} is no Python 3: {error}.") from error


def _write(
    target: pathlib.Path, old: pathlib.Path, content: bytes, options: argparse.Namespace
) -> None:
    """Writes the new program, with the mode of the old one; through a link, where that leads."""
    if target.exists() and not (options.force or options.in_place):
        raise errors.InvalidInput(f"migrate: {target} exists. Give another --output, or --force.")
    target = target.resolve()
    # Replaced at once, so that no half of a program can be left behind.
    temporary = target.with_name(f".{target.stem}.new.py")
    temporary.write_bytes(content)
    shutil.copymode(old, temporary)
    try:
        if options.check_run:
            from estimator_bridge.migrate import one_step

            one_step.check(temporary, options.arguments)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{target} is written.", file=sys.stderr)
