# Argument: how to take room.


def memfd():
    """A file in memory that has no end."""
    fd, piece = os.memfd_create("m"), bytes(1 << 20)
    for _ in range(4096):
        os.write(fd, piece)


def nameless(folder):
    """How much a file takes that was removed while it is open, and what another file is told meanwhile."""
    path, piece, held = os.path.join(folder, "gone"), bytes(64 << 10), 0
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.unlink(path)
    try:
        while held < 1 << 30:
            held += os.write(fd, piece)
        said = "ok"
    except OSError as e:
        said = name(e.errno)

    def other():
        with open(os.path.join(folder, "other"), "wb") as f:
            f.write(bytes(1 << 20))

    apart = attempt(other)
    tell({"held": held, "said": said, "apart": apart})


{"memfd": memfd, "nameless": nameless}[sys.argv[1]](*sys.argv[2:])
