"""Stand-ins for objects of others, one module for each owner."""
