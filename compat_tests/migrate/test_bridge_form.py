"""`estimator-bridge migrate`: the bridge form has other imports, and is otherwise the same."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
import textwrap
from typing import Any

import pytest

from compat_tests.support import examples, fresh
from compat_tests.support.whole_forms import migrate
from estimator_bridge import errors
from estimator_bridge.cli import main
from estimator_bridge.migrate import adopt
from estimator_bridge.migrate.stock_replacements import place_of
from estimator_bridge.run import install, stock_names

HEAD = """\
from estimator_bridge import install
install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.
"""


def rewritten(source: str) -> str:
    """Returns the bridge form of a source."""
    return adopt(textwrap.dedent(source)).source


@pytest.mark.parametrize(
    "old, new",
    [
        (
            "from tensorflow.compat.v1 import estimator as e",
            "from estimator_bridge import estimator as e",
        ),
        ("from tensorflow import estimator", "from estimator_bridge import estimator"),
        ("import tensorflow.estimator as e", "from estimator_bridge import estimator as e"),
        ("from tensorflow.estimator import tpu", "from estimator_bridge.estimator import tpu"),
        (
            "from tensorflow.estimator.tpu import RunConfig as R, TPUConfig",
            "from estimator_bridge.estimator.tpu import RunConfig as R, TPUConfig",
        ),
        (
            "from tensorflow.estimator.tpu.experimental import *",
            "from estimator_bridge.estimator.tpu.experimental import *",
        ),
        (
            "from tensorflow.python.tpu.tpu_embedding import AdamParameters, TableConfig",
            "from estimator_bridge.legacy.parameters import AdamParameters\n"
            "from estimator_bridge.legacy.table_config import TableConfig",
        ),
        (
            "from tensorflow.compat.v1 import estimator, train  # Both.",
            "from tensorflow.compat.v1 import train  # Both.\n"
            "from estimator_bridge import estimator",
        ),
    ],
)
def test_imports_lead_to_the_bridge(old: str, new: str) -> None:
    """However a program imports stock, the new one imports the same names from the bridge."""
    assert rewritten(f"{old}\n") == f"{HEAD}\n{new}\n"


def test_names_are_replaced_where_they_are_used() -> None:
    """Names below TensorFlow, or below a private module, are replaced; comments stay."""
    source = '''\
        """A program."""
        from __future__ import print_function

        # Ours.
        import os
        # TensorFlow's.
        import tensorflow.compat.v1 as tf  # The old one.
        # Its private modules.
        from tensorflow_estimator.python.estimator.tpu import tpu_config
        import tensorflow_estimator.python.estimator.tpu.tpu_estimator as te

        parameters = os.environ  # Takes the name.


        def make( a ):   # As it was formatted.
            mode = tf.estimator.ModeKeys.TRAIN
            config = tpu_config.RunConfig(  # One
                tpu_config=tpu_config.TPUConfig())
            return te.TPUEstimator(a, config), tf.tpu.experimental.AdamParameters( .1 )
        '''
    assert rewritten(source) == textwrap.dedent(
        '''\
        """A program."""
        from __future__ import print_function

        # Ours.
        import os
        # TensorFlow's.
        from estimator_bridge import install
        install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.

        import tensorflow.compat.v1 as tf  # The old one.
        from estimator_bridge import estimator as tf_estimator
        from estimator_bridge.legacy import parameters as bridge_parameters
        # Its private modules.

        parameters = os.environ  # Takes the name.


        def make( a ):   # As it was formatted.
            mode = tf_estimator.ModeKeys.TRAIN
            config = tf_estimator.tpu.RunConfig(  # One
                tpu_config=tf_estimator.tpu.TPUConfig())
            return tf_estimator.tpu.TPUEstimator(a, config), bridge_parameters.AdamParameters( .1 )
        '''
    )


USES = [
    "def f():\n  return tf.estimator.ModeKeys\nfrom tensorflow.compat.v1 import estimator as e\n",
    "if tf:\n  from tensorflow.compat.v1 import estimator as e\nx = tf.estimator.ModeKeys\n",
    "from tensorflow.compat.v1 import estimator as e\ndef f(e):\n  return tf.estimator.ModeKeys\n",
    "from tensorflow.compat.v1 import estimator as e\ne = None\nx = tf.estimator.ModeKeys\n",
    "x = tf.estimator.ModeKeys\nfrom tensorflow.compat.v1 import estimator as e\n",
]


@pytest.mark.parametrize("use", USES)
def test_only_names_that_all_code_has_are_reused(use: str) -> None:
    """An import that comes later, in a block or under a name of something else is not relied on."""
    new = rewritten(f"import tensorflow.compat.v1 as tf\n{use}")

    assert "import tensorflow.compat.v1 as tf\n" in new
    before, new_import, _ = new.partition(
        "from estimator_bridge import estimator as tf_estimator\n"
    )
    assert new_import
    assert "ModeKeys" not in before
    assert "tf_estimator.ModeKeys" in new


def test_specs_keep_the_numbers_of_stock() -> None:
    """A spec says quirks='stock', with a line in the report, unless it says which quirks it has."""
    call = "tf.estimator.tpu.experimental.EmbeddingConfigSpec"
    source = f"import tensorflow as tf\na = {call}(c)\nb = {call}(\n    c=1,\n    quirks=q)\n"
    new = adopt(source)

    assert "EmbeddingConfigSpec(c, quirks='stock')\n" in new.source
    assert "EmbeddingConfigSpec(\n    c=1,\n    quirks=q)\n" in new.source
    (line,) = [line for line in new.lines if line.new == "quirks='stock'"]
    assert line.line == 2
    assert "`clipping_limit`" in line.why


def test_unsupported_names_have_a_comment() -> None:
    """A name that the bridge does not have stays, under a comment with the reason."""
    program = "import tensorflow as tf\n\n\ndef f():\n  return tf.estimator.{}([3])\n"
    new = adopt(program.format("BoostedTreesClassifier"))

    mark = "  # TODO(estimator-bridge): unsupported-names: tf.estimator.BoostedTreesClassifier is "
    assert f"{mark}left out:" in new.source
    assert "\n  return tf_estimator.BoostedTreesClassifier([3])\n" in new.source
    assert [line.line for line in new.lines if line.kind == "by hand"] == [5]


@pytest.mark.parametrize(
    "source, used",
    [
        ("import tensorflow as tf\ntf.estimator.DNNClassifier\n", "v2.DNNClassifier"),
        ("import tensorflow.compat.v1 as tf\ntf.estimator.DNNClassifier\n", "DNNClassifier"),
        ("import tensorflow as tf\ntf.compat.v1.estimator.DNNClassifier\n", "DNNClassifier"),
        ("from tensorflow import estimator\nestimator.LinearRegressor\n", "v2.LinearRegressor"),
        (
            "import tensorflow as tf\ntf.estimator.classifier_parse_example_spec\n",
            "v2.classifier_parse_example_spec",
        ),
    ],
)
def test_classes_are_those_of_the_programs_api(source: str, used: str) -> None:
    """A class that differs between TensorFlow 1 and 2 is that of the namespace it is taken from."""
    new = adopt(source)

    assert new.source.rstrip().endswith(f"estimator.{used}")
    fresh.code(new.source, check=True)


@pytest.mark.parametrize(
    "source",
    [
        "from tensorflow_estimator.python.estimator.tpu import tpu_config\nprint(tpu_config)\n",
        "from tensorflow_estimator.python.estimator import util\nutil.some_name(print)\n",
        "from tensorflow_estimator.python.estimator.tpu.tpu_config import *\n",
    ],
)
def test_modules_that_are_used_as_such_are_installed(source: str) -> None:
    """A module that is passed around, or unknown, stays, and `install` serves it at the start."""
    new = adopt(source)

    assert new.source.startswith("from estimator_bridge import install\ninstall.install(replace=")
    assert new.source.endswith(source)
    assert new.lines[0].kind == "by hand"


def test_a_program_without_estimators_is_not_changed() -> None:
    """A program that uses nothing of stock's estimator is not rewritten."""
    source = "import tensorflow as tf\r\nprint( tf.nest )\r\n"

    assert adopt(source).source == source


def test_imports_in_functions_are_rewritten_there() -> None:
    """An import inside a function is rewritten in place, and serves no names elsewhere."""
    source = """\
        def f():
            from tensorflow.compat.v1 import estimator as e
            return e.ModeKeys


        import tensorflow as tf
        x = tf.estimator.ModeKeys
        """
    assert rewritten(source) == (
        "def f():\n    from estimator_bridge import estimator as e\n    return e.ModeKeys\n"
        f"\n\n{HEAD}\nimport tensorflow as tf\n"
        "from estimator_bridge import estimator as tf_estimator\n"
        "x = tf_estimator.ModeKeys\n"
    )


def test_every_name_of_stock_has_a_replacement() -> None:
    """`migrate` writes for a name of stock the name of the object that `install` puts there."""
    names = [f"{module}.{name}" for module, names in stock_names.MODULES.items() for name in names]
    names += [f"tensorflow.compat.v1.tpu.experimental.{name}" for name in stock_names.PARAMETERS]
    for name in names:
        place = place_of(name)
        assert place is not None, name
        module, _, attribute = name.rpartition(".")
        target = stock_names.MODULES.get(module, {}).get(attribute)
        if target is not None:
            assert _resolved(*place) is install.load(target), name
            assert _resolved(*place.importable()) is install.load(target), name


def _resolved(module: str, attributes: str) -> Any:
    value: Any = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        value = getattr(value, attribute)
    return value


@pytest.mark.parametrize(
    "old, new",
    [
        ("estimator_bridge.cluster_resolver", "estimator_bridge.run.cluster_resolver"),
        ("estimator_bridge.migration", "estimator_bridge.migrate"),
        ("estimator_bridge.rewriting", "estimator_bridge.migrate"),
        ("estimator_bridge.tpu", "estimator_bridge.estimator.tpu"),
    ],
)
def test_programs_of_earlier_versions_run(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that earlier versions wrote into programs are importable, with a warning."""
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"is now `{new}`"):
        assert importlib.import_module(old) is importlib.import_module(new)


def test_the_command_overwrites_only_if_asked_to(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new program is NAME_bridge.py; an existing file is an error without --force."""
    path = tmp_path / "train.py"
    path.write_bytes(b"from tensorflow import estimator\r\nx = 1\r\n")
    new = tmp_path / "train_bridge.py"

    assert main.main(["migrate", str(path)]) == 0
    assert b"from estimator_bridge import estimator" in new.read_bytes()
    assert b"x = 1\r\n" in new.read_bytes()
    assert "[import] line 1: from tensorflow import estimator -> " in capsys.readouterr().out
    assert main.main(["migrate", str(path)]) == 2
    assert "exists. Give another --output, or --force" in capsys.readouterr().err
    assert main.main(["migrate", "--json", "--force", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][0]["line"] == 1
    assert main.main(["migrate", "--diff", str(path)]) == 0
    assert "-from tensorflow import estimator" in capsys.readouterr().out
    assert main.main(["migrate", "--in_place", str(path)]) == 0
    assert path.read_bytes() == new.read_bytes()


@pytest.mark.parametrize(
    "name, words", [("nowhere.py", "no program"), ("old.py", "Python 3 cannot read")]
)
def test_a_file_that_is_no_program_is_an_error(
    name: str, words: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, or one that is not Python 3, is an error that names it."""
    (tmp_path / "old.py").write_text("print 'Python 2'\n")

    assert main.main(["migrate", str(tmp_path / name)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("deep", ["(" * 300 + ")" * 300, "1" + " + 1" * 5000, "-" * 9000 + "1"])
def test_hostile_nesting_is_refused(deep: str) -> None:
    """Code that is nested too deeply to be parsed safely is an error, and no crash."""
    with pytest.raises(errors.InvalidInput, match=r"deep\.py"):
        adopt(f"import tensorflow as tf\nx = {deep}\n", "deep.py")


@pytest.mark.parametrize("path", examples.EXAMPLES, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("rewrite", [adopt, migrate])
def test_a_program_is_migrated_once(rewrite: Any, path: pathlib.Path) -> None:
    """A program that was migrated already stays as it is."""
    once = examples.rewritten(rewrite, path).source

    assert rewrite(once).source == once


def test_encodings_modes_and_links_are_kept(tmp_path: pathlib.Path) -> None:
    """The new program has the encoding and the mode of the old one; a link stays one."""
    path, link = tmp_path / "train.py", tmp_path / "link.py"
    text = "# coding: latin-1\nfrom tensorflow import estimator  # gr\xfc\xdfe\n"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o750)
    link.symlink_to(path)

    assert main.main(["migrate", "--in_place", str(link)]) == 0
    assert link.is_symlink()
    assert b"# gr\xfc\xdfe\n" in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o750
    path.write_bytes(b"x = '\xff'\n")
    assert main.main(["migrate", "--force", str(path)]) == 2


def test_broken_sources_are_named() -> None:
    """An error in a source names the program."""
    with pytest.raises(errors.InvalidInput, match=r"job\.py.*Python 3 cannot read"):
        adopt("def\n", "job.py")
