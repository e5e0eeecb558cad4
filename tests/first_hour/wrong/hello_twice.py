"""A script without torch, which does the same work twice.

long
exit: 0
says: warning: hello_twice.py ran as 2 independent copies
says: hand the training function to shoal.main(train), or call torch.distributed.init_process_group first, or start it with python
"""

import math

print(math.factorial(10))
