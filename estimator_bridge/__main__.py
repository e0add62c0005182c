"""`python -m estimator_bridge` is `estimator-bridge`."""

import sys

from estimator_bridge.cli.main import main

sys.exit(main())
