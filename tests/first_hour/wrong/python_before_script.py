"""`shoal run` is typed before the old command, with its python.

long
run: -n 2 python SCRIPT
says: python stands where the script should; leave it out
"""

print("never")
