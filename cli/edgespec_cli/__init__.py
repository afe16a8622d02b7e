"""The command line of edgespec: click commands over the public API."""
