"""The two formats of checkpoints, behind one interface: by name and by object."""
