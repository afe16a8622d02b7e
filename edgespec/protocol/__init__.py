"""What a device and a server say to each other, byte by byte."""
