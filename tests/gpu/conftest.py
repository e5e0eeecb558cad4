"""Tests that need a GPU. Where there is none they are not collected, so that nothing is skipped."""

from __future__ import annotations

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
