"""The disk: the only place that opens or writes files of a pack. It knows no number formats.

document(s), strict_json, schemas   JSON and YAML whose every part knows its place
container, listing, names           what lies in a pack; what is refused
archive, zip_file, tar_file         a pack that comes packed
manifest, verification, digests     what was written, and whether it still is so
edits, additions                    spans replaced, spans added, files made anew
writer, workshop, copying           a new container, whole or absent
in_place, journal, lock, undo       the pack's own files, and the way back
pointers                            what Git leaves in place of files that it did not fetch
"""
