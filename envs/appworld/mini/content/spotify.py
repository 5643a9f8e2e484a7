"""Spotify: artists, albums, songs; libraries, likes, followings, downloads and playlists of everybody."""

from __future__ import annotations

import random

from ..people import PEOPLE
from ..world import World

GENRES = ("folk", "synthwave", "bossa nova", "afrobeat", "shoegaze", "bluegrass")
_ARTISTS = (
    "Marlow Finch", "Neon Quarry", "Lua Tavares", "Kwame Odera", "Pale Estuary", "Dusty Almanac", "Sable Harbor",
    "Circuit Orchard", "Rosa Quintal", "Abeni Folarin", "Glass Pavilion", "Creekbed Four", "The Tin Lanterns",
    "Vector Bloom", "Tomas Iriarte", "Zuberi Lane", "Honeywell Fade", "Old Ferry Band",
)  # fmt: skip
_FIRST = (
    "Paper", "Glass", "Copper", "Velvet", "Hollow", "Winter", "Amber", "Silent", "Distant", "Broken", "Golden",
    "Crooked",
)  # fmt: skip
_SECOND = (
    "Orchard", "Signal", "Tide", "Lantern", "Bridge", "Compass", "Garden", "Station", "Mirror", "River", "Letter",
    "Engine",
)  # fmt: skip
_PLAYLISTS = ("Morning Commute", "Kitchen Radio", "Deep Work", "Sunday Slow", "Long Run", "Rainy Window", "House Party")


def fill(world: World) -> None:
    """144 songs of 18 artists on 16 albums and as singles; 22 to 46 songs in each library."""
    rng, spotify = random.Random("spotify"), world.models.spotify
    artists = world.add(
        spotify.Artist,
        [dict(name=name, genre=GENRES[i % 6], created_at=world.on(2012, 1, 5)) for i, name in enumerate(_ARTISTS)],
    )
    titles = [f"{first} {second}" for first in _FIRST for second in _SECOND]
    rng.shuffle(titles)
    albums = world.add(
        spotify.Album,
        [
            dict(title=f"{titles[i].split()[1]} Sessions, Vol. {i + 1}", artist_ids=[artists[i].id],
                 release_date=world.on(2017 + i % 7, 1 + (5 * i) % 12, 4), genre=artists[i].genre)
            for i in range(16)
        ],
    )  # fmt: skip
    rows = []
    for i, title in enumerate(titles):
        album = albums[i // 6] if i < 96 else None
        artist = artists[(i // 6) % 16] if album else artists[i % 18]
        date = album.release_date if album else world.on(rng.randint(2016, 2023), rng.randint(1, 12), 11)
        rows.append(
            dict(title=title, artist_ids=[artist.id], album_id=album and album.id, duration=rng.randint(125, 390),
                 release_date=date, genre=artist.genre, play_count=rng.randint(20, 9000))
        )  # fmt: skip
    songs = world.add(spotify.Song, rows)
    library, likes, playlists = [], [], []
    for i, one in enumerate(PEOPLE):
        me = world.user("spotify", one).id
        mine = rng.sample(songs, 22 + 8 * (i % 4))
        library += [dict(user_id=me, song_id=song.id, created_at=world.ago(400 - k)) for k, song in enumerate(mine)]
        likes += [
            dict(user_id=me, song_id=song.id, liked_at=world.ago(300 - k))
            for k, song in enumerate(rng.sample(songs, 13))
        ]
        world.add(
            spotify.UserLibraryAlbum,
            [dict(user_id=me, album_id=album.id, created_at=world.ago(350)) for album in rng.sample(albums, 6)],
        )
        world.add(
            spotify.UserArtistFollowing,
            [dict(user_id=me, artist_id=artist.id, created_at=world.ago(350)) for artist in rng.sample(artists, 6)],
        )
        world.add(
            spotify.UserDownloadedSong,
            [dict(user_id=me, song_id=song.id, downloaded_at=world.ago(90)) for song in rng.sample(mine, 7)],
        )
        world.add(
            spotify.Recommendation,
            [dict(user_id=me, song_id=song.id, created_at=world.ago(3)) for song in rng.sample(songs, 8)],
        )
        spotify.MusicPlayer.create_save(user_id=me, queue_song_ids=[song.id for song in mine[:5]], cursor_position=0)
        for k, title in enumerate(rng.sample(_PLAYLISTS, 4)):
            playlists.append((dict(title=title, user_id=me, is_public=k == 0, created_at=world.ago(200 - k)),
                              rng.sample(songs, rng.randint(7, 15))))  # fmt: skip
    world.add(spotify.UserLibrarySong, library)
    world.add(spotify.SongLike, likes)
    made = world.add(spotify.Playlist, [row for row, _ in playlists])
    world.add(
        spotify.PlaylistSong,
        [
            dict(playlist_id=playlist.id, song_id=song.id, added_at=world.ago(180))
            for playlist, (_, chosen) in zip(made, playlists, strict=True)
            for song in chosen
        ],
    )
