# Does to PID 1, from a command, what a command could try.
told = {}
iov = lambda b: (ctypes.c_void_p * 2)(ctypes.addressof(b), len(b))
there = ctypes.create_string_buffer(16)
x86 = platform.machine() == "x86_64"

told["signals"] = sorted({attempt(lambda: os.kill(1, n)) for n in range(1, 65)})
told["queued"] = sorted({str(syscall(129 if x86 else 138, 1, n, ctypes.create_string_buffer(struct.pack("iii", n, 0, -1) + bytes(116)))) for n in range(1, 65)})
told["thread"] = sorted({str(syscall(234 if x86 else 131, 1, 1, n)) for n in range(1, 65)})
told["pidfd"] = str(apart(lambda: syscall(424, os.pidfd_open(1), 9, 0, 0)))
told["attach"] = str(apart(lambda: syscall(101 if x86 else 117, 16, 1, 0, 0)))
told["seize"] = str(apart(lambda: syscall(101 if x86 else 117, 0x4206, 1, 0, 0)))
told["read memory"] = str(apart(lambda: syscall(310 if x86 else 270, 1, iov(there), 1, iov(there), 1, 0)))
told["write memory"] = str(apart(lambda: syscall(311 if x86 else 271, 1, iov(there), 1, iov(there), 1, 0)))
told["priority"] = attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
told["affinity"] = attempt(lambda: os.sched_setaffinity(1, {0}))
told["scheduler"] = attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
told["limit"] = attempt(lambda: __import__("resource").prlimit(1, __import__("resource").RLIMIT_NOFILE, (1, 1)))
told["oom score"] = attempt(lambda: open("/proc/1/oom_score_adj", "w").write("1000\n"))
told["uid 0"] = attempt(lambda: os.setuid(0))
told["gid 0"] = attempt(lambda: os.setgid(0))
told["groups"] = attempt(lambda: os.setgroups([]))
# What waits to become a command is the guest's too. It has the secrets of those before it in no place of its own.
waiting = [p for p in os.listdir("/proc") if p.isdigit() and os.stat("/proc/" + p).st_uid == 0]
told["kill those waiting"] = sorted({attempt(lambda: os.kill(int(p), 9)) for p in waiting})
for file in ("environ", "mem", "maps", "stack", "syscall", "auxv"):
    told["read %s of those waiting" % file] = sorted({attempt(lambda: open("/proc/%s/%s" % (p, file), "rb").read(1)) for p in waiting})
told["look into those waiting"] = sorted({attempt(lambda: os.listdir("/proc/%s/%s" % (p, d))) for p in waiting for d in ("fd", "map_files", "root")})
tell(told)
