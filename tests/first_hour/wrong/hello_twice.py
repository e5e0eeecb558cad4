"""A script without torch, which does the same work twice.

long
exit: 0
says: warning: hello_twice.py ran as 2 independent copies
"""

import math

print(math.factorial(10))
