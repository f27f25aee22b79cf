"""``python -m torchzephon``."""

import sys

from torchzephon.cli.main import main

sys.exit(main())
