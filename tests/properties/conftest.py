"""The property tests share their machine, its fleets and its judges: plain modules beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
