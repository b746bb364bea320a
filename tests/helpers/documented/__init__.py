"""The commands of the docs: collected by a shell, and what each needs to be tried."""
