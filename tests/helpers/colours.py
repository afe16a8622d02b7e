"""Colours that fitted eyes name."""

COLOURS = {
    "red": (220, 20, 20), "green": (20, 160, 40), "blue": (30, 60, 220), "yellow": (240, 220, 30),
    "black": (10, 10, 10), "white": (245, 245, 245), "orange": (250, 140, 20),
    "purple": (130, 40, 160), "pink": (250, 150, 190), "brown": (120, 70, 30),
}  # fmt: skip
