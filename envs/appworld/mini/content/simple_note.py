"""Simple Note: ten notes for each person: lists, ideas, measurements."""

from __future__ import annotations

import random

from ..people import PEOPLE
from ..world import World

_NOTES = (
    ("Packing list", ["travel", "list"], "socks\ncharger\nmap\nrain jacket"),
    ("Gift ideas", ["list"], "Mum: seed tins\nSam: card game\nGran: a framed photo"),
    ("Paint colours", ["home"], "Hall: chalk\nKitchen: pale sage\nDoor: ink blue"),
    ("Words to learn", ["study"], "saudade\nhygge\nschadenfreude"),
    ("Window sizes", ["home"], "Kitchen 92 x 110\nBath 48 x 60\nStairs 60 x 140"),
    ("Plant care", ["home"], "Fern: twice a week\nCactus: once a month"),
    ("Talk outline", ["work"], "1. Why\n2. What we tried\n3. What failed\n4. What worked"),
    ("Half marathon plan", ["sport"], "Week 1: 3 x 5 km\nWeek 2: 3 x 6 km\nWeek 3: 2 x 8 km"),
    ("Board games to try", ["list"], "the one with trains\nthe one with birds"),
    ("Bike repairs", ["sport"], "chain replaced, brake pads next"),
    ("Questions for the landlord", ["home"], "heating in May?\nspare key\nbin days"),
    ("Interesting shops", ["list", "travel"], "the map shop\nthe lamp shop on the square"),
)


def fill(world: World) -> None:
    """Ten of twelve notes for each person, the first pinned."""
    rng, rows = random.Random("simple_note"), []
    for one in PEOPLE:
        me = world.user("simple_note", one).id
        for k, (title, tags, content) in enumerate(rng.sample(_NOTES, 10)):
            day = world.ago(150 - 9 * k, 20)
            rows.append(
                dict(user_id=me, title=title, tags=tags, content=content, pinned=k == 0, created_at=day, updated_at=day)
            )
    world.add(world.models.simple_note.Note, rows)
