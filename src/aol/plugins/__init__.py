"""One file a host: ages in the tools people already use. Each knows its host and the lower rooms."""
