"""What people get wrong when they port a script: noticed at the first step, and told with the fix."""
