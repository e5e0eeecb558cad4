"""Settings for every test: bfloat16 kernels that every virtual machine can run, and one torch thread per worker."""

from __future__ import annotations

import os

# Some virtual machines announce AMX and then fault on it; oneDNN reads this once, when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
