"""`python -m candapt`."""

import sys

from candapt.cli import main

sys.exit(main())
