"""How fast it is: workloads, what they are compared with, and the command that runs them."""
