"""The hold on SGLang: what is overridden, hooked, called and read, and that it is in place."""
