"""`python -m candapt`."""

import sys

from candapt.commands.main import main

sys.exit(main())
