"""HiCache's storage tier behind an emulated link: `emulated_storage` is the backend."""
