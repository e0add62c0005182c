"""Prints a script that lets a shell complete commands, their options and their values."""

from __future__ import annotations

import argparse

from estimator_bridge.cli import output

_SCRIPT = """\
# Completion of estimator-bridge in bash and zsh: eval "$(estimator-bridge completion)"
if [ -n "${{ZSH_VERSION-}}" ]; then
  autoload -U +X compinit bashcompinit && compinit && bashcompinit
fi
_estimator_bridge() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{commands}' -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}} $before" in
{values}
    *)
      case "${{COMP_WORDS[1]}}" in
{options}
      esac ;;
  esac
  # Options once a hyphen is typed; else the shell completes files.
  if [ "${{words#-}}" = "$words" ] || [ "${{word#-}}" != "$word" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
}}
complete -o bashdefault -o default -F _estimator_bridge estimator-bridge
"""


def execute(options: argparse.Namespace) -> None:
    # Imported late, because that module imports every command.
    from estimator_bridge.cli import main

    output.show(*script(main.parsers()[1]).splitlines())


def script(parsers: dict[str, argparse.ArgumentParser]) -> str:
    values, options = [], []
    for command, parser in parsers.items():
        names: list[str] = []
        for action in parser._actions:
            names += action.option_strings
            if action.choices is not None:
                words = " ".join(map(str, action.choices))
                patterns = "|".join(f"'{command} {name}'" for name in action.option_strings)
                values.append(f"    {patterns}) words='{words}' ;;")
        options.append(f"        {command}) words='{' '.join(names)}' ;;")
    return _SCRIPT.format(
        commands=" ".join(parsers), values="\n".join(values), options="\n".join(options)
    )
