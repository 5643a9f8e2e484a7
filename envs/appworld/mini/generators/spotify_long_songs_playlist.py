"""State change: a new playlist of the library's songs that are longer than some minutes. The library has several pages."""

from __future__ import annotations

from ..evaluation import Change
from ..solutions import docs, finish, login, paged, plus, swapped
from ..task import Task
from ..world import World

DIFFICULTY = 2
VARIANTS = (("Priya", 5, "Slow Burners"), ("Callum", 5, "Very Long Walk"), ("Idris", 5, "Kettle's On"))


def make(world: World, who: str, minutes: int, title: str) -> Task:
    """One app, two kinds of new records."""
    me = world.user("spotify", who)
    chosen = [song for song in me.library_songs if song.duration > minutes * 60]
    steps = [
        docs("spotify"),
        docs("spotify", "show_song_library", "create_playlist", "add_song_to_playlist"),
        login("spotify"),
        paged("library", "apis.spotify.show_song_library(access_token=spotify_token"),
        f"""chosen = [s for s in library if s["duration"] > {minutes} * 60]
print([(s["title"], s["duration"]) for s in chosen])""",
        f"""made = apis.spotify.create_playlist(title={title!r}, is_public=False, access_token=spotify_token)
for s in chosen:
    apis.spotify.add_song_to_playlist(playlist_id=made["playlist_id"], song_id=s["song_id"], access_token=spotify_token)""",
        finish(),
    ]
    return Task(
        supervisor=who,
        instruction=f'Make me a private Spotify playlist named "{title}" of all the songs in my song library that last longer '
        f"than {minutes} minutes.",
        steps=steps,
        wrong={
            "wrong": swapped(steps, ("range(40)", "range(1)")),
            "collateral": plus(
                steps, 'apis.spotify.download_song(song_id=library[0]["song_id"], access_token=spotify_token)'
            ),
            "public": swapped(steps, ("is_public=False", "is_public=True")),
        },
        changes=[
            Change("spotify.Playlist", "added", [{"user_id": me.id, "title": title, "is_public": False}]),
            Change("spotify.PlaylistSong", "added", [{"playlist.title": title, "song_id": song.id} for song in chosen]),
        ],
    )
