# Uses up storage. Argument: how.


def memfd():
    """Writes to a memfd without end."""
    fd, piece = os.memfd_create("m"), bytes(1 << 20)
    for _ in range(4096):
        os.write(fd, piece)


def nameless(dir):
    """Fills a deleted open file, then reports its size, the error, and the error for another file."""
    path, piece, held = os.path.join(dir, "gone"), bytes(64 << 10), 0
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.unlink(path)
    try:
        while held < 1 << 30:
            held += os.write(fd, piece)
        result = "ok"
    except OSError as e:
        result = name(e.errno)

    def other():
        with open(os.path.join(dir, "other"), "wb") as f:
            f.write(bytes(1 << 20))

    other_result = attempt(other)
    report({"held": held, "result": result, "other": other_result})


{"memfd": memfd, "nameless": nameless}[sys.argv[1]](*sys.argv[2:])
