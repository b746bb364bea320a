"""A trained model under forced pauses: what it is asked, on which servers, and what is compared."""
