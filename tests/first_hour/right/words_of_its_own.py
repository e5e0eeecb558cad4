"""The words behind the script are meant for it, and the user says so.

long
run: -n 2 --progress none -- SCRIPT --seed 3 --resume now
says: [worker 1] ['--seed', '3', '--resume', 'now']
"""

import sys

import torch.distributed as dist

dist.init_process_group("gloo")
print(sys.argv[1:])
dist.barrier()
dist.destroy_process_group()
