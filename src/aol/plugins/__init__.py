"""One file a host: ages in the tools people already use. A file needs its host, and knows this library's lower rooms."""
