"""``python -m envspec``."""

import sys

from envspec.cli import main

sys.exit(main())
