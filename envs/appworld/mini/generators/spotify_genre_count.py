"""Question: how many songs of a genre are in the song library, which spans several pages."""

from __future__ import annotations

from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 1
VARIANTS = (("Tobias", "folk"), ("Callum", "shoegaze"), ("Idris", "bossa nova"))


def make(world: World, who: str, genre: str) -> Task:
    """A task of one app whose answer needs every page and one more call per song."""
    songs = world.user("spotify", who).library_songs
    steps = [
        docs("spotify", "show_song_library", "show_song"),
        login("spotify"),
        paged("library", "apis.spotify.show_song_library(access_token=spotify_token"),
        f"""count = 0
for entry in library:
    song = apis.spotify.show_song(song_id=entry["song_id"])
    if song["genre"] == "{genre}":
        count += 1
print(count)""",
        finish("count"),
    ]
    return Task(
        supervisor=who,
        instruction=f"How many {genre} songs do I have in my Spotify song library?",
        answer=sum(song.genre == genre for song in songs),
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("range(40)", "range(1)")),
            "collateral": plus(
                steps, f'apis.spotify.create_playlist(title="All my {genre}", access_token=spotify_token)'
            ),
        },
    )
