# Reports the identity of this process and what it can read and write.
import stat


def status(path):
    with open(path) as f:
        return dict(l.rstrip("\n").split(":", 1) for l in f)


def fields(path):
    wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups")
    s = status(path)
    return {k: s.get(k, "").strip() for k in wanted}


def writable():
    """Returns writable files and directories, grouped by file system."""
    found = {}
    for dir, dirs, files in os.walk("/"):
        dirs[:] = [d for d in dirs if not (dir == "/" and d == "proc")]
        for n in [""] + files:
            path = os.path.join(dir, n)
            try:
                if not os.path.islink(path) and os.access(path, os.W_OK):
                    found.setdefault(os.lstat(path).st_dev, []).append(path)
            except OSError:
                pass
    return [sorted(p)[:20] for p in found.values()]


def devices():
    found = []
    for dir, dirs, files in os.walk("/dev"):
        for n in files:
            path = os.path.join(dir, n)
            mode = os.lstat(path).st_mode
            if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                found.append(path)
    return sorted(found)


def opened(path, flags):
    def do():
        fd = os.open(path, flags | os.O_NONBLOCK)
        try:
            if flags & 3 == os.O_RDONLY:
                # A masked path is covered by an empty file or directory.
                if stat.S_ISDIR(os.fstat(fd).st_mode):
                    if not os.listdir(fd):
                        raise OSError(errno.ENOENT, "empty")
                elif not os.read(fd, 1):
                    raise OSError(errno.ENOENT, "empty")
        finally:
            os.close(fd)

    return attempt(do)


secret = ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kmsg", "/dev/kmsg", "/dev/mem", "/sys/firmware", "/proc/1/environ",
          "/proc/1/mem", "/proc/1/root", "/proc/1/cwd", "/proc/1/fd", "/proc/1/maps", "/run/orchestrator", "/run/orchestrator/guest",
          "/run/orchestrator/cgroup", "/run/orchestrator/host.sock", "/run/guest", "/etc/shadow", "/sys/kernel/debug", "/sys/kernel/security"]
settings = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/msgmni", "/proc/sys/vm/drop_caches", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
            "/proc/1/oom_score_adj", "/sys/kernel/uevent_helper", "/sys/class/net/lo/mtu", "/etc/passwd", "/etc/ld.so.preload", "/usr/bin/python3",
            "/proc/1/clear_refs", "/dev/full/x"]


def make(path):
    return attempt(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)))


def mounts():
    out = []
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, right = line.split(" - ", 1)
            l, r = left.split(), right.split()
            out.append({"at": l[4], "options": l[5].split(","), "type": r[0], "super": r[2].split(",")})
    return out


def setuid():
    """Returns the setuid and setgid programs of the image."""
    found = []
    for top in ("/usr", "/bin", "/sbin", "/opt"):
        for dir, _, files in os.walk(top):
            for n in files:
                path = os.path.join(dir, n)
                try:
                    if os.lstat(path).st_mode & 0o6000 and stat.S_ISREG(os.lstat(path).st_mode):
                        found.append(path)
                except OSError:
                    pass
    return sorted(found)


report({
    "self": fields("/proc/self/status"),
    "init": fields("/proc/1/status"),
    "init_command": open("/proc/1/cmdline").read().split("\0")[:2],
    "ids": list(os.getresuid() + os.getresgid()) + os.getgroups(),
    "root_read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    "writable": writable(),
    "made": {p: make(p) for p in ("/x", "/usr/x", "/etc/x", "/var/x", "/root/x", "/opt/x", "/home/x", "/sys/x", "/dev/x", "/run/x",
                                  "/var/tmp/x", "/var/lib/x", "/usr/bin/x", "/run/orchestrator/x", "/proc/x")},
    "node": attempt(lambda: os.mknod("/tmp/node", stat.S_IFCHR | 0o666, os.makedev(1, 1))),
    "devices": devices(),
    "read": {p: opened(p, os.O_RDONLY) for p in secret},
    "set": {p: opened(p, os.O_WRONLY) for p in settings},
    "mounts": mounts(),
    "setuid_files": setuid(),
    "environment": dict(os.environ),
    "pids": [int(p) for p in os.listdir("/proc") if p.isdigit()],
    "limits": {n: list(__import__("resource").getrlimit(getattr(__import__("resource"), n))) for n in ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_RTPRIO", "RLIMIT_MEMLOCK")},
})
