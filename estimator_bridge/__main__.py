"""Runs `estimator-bridge` for `python -m estimator_bridge`."""

import sys

from estimator_bridge.cli.main import main

sys.exit(main())
