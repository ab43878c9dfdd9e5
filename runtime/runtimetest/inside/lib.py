# Put before every other program of this folder. The programs run inside a sandbox as an ordinary command and print
# one JSON value on stdout; they only try and tell, what is right is decided outside.
import ctypes, errno, json, mmap, os, platform, signal, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def name(number):
    return errno.errorcode.get(number, str(number))


def syscall(number, *args):
    """The result, or the name of the error."""
    ctypes.set_errno(0)
    got = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, ctypes._Pointer) or isinstance(a, ctypes.Array) else ctypes.c_long(a) for a in args])
    return name(ctypes.get_errno()) if got < 0 else got


def apart(function):
    """What function returns, called in a child of its own: an error by name, a signal as "killed N"."""
    sys.stdout.flush()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            os.close(r)
            try:
                said = function()
            except OSError as e:
                said = name(e.errno)
            os.write(w, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        said = f.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "killed %d" % os.WTERMSIG(status)
    return json.loads(said) if said else "nothing"


def attempt(function):
    """"ok", or the name of the error that function raised."""
    try:
        function()
        return "ok"
    except OSError as e:
        return name(e.errno) if e.errno else type(e).__name__


def tell(value):
    print(json.dumps(value))
