# Attacks PID 1 as a command could.
results = {}
iov = lambda b: (ctypes.c_void_p * 2)(ctypes.addressof(b), len(b))
there = ctypes.create_string_buffer(16)
x86 = platform.machine() == "x86_64"

results["signals"] = sorted({attempt(lambda: os.kill(1, n)) for n in range(1, 65)})
results["queued"] = sorted({str(syscall(129 if x86 else 138, 1, n, ctypes.create_string_buffer(struct.pack("iii", n, 0, -1) + bytes(116)))) for n in range(1, 65)})
results["thread"] = sorted({str(syscall(234 if x86 else 131, 1, 1, n)) for n in range(1, 65)})
results["pidfd"] = str(in_child(lambda: syscall(424, os.pidfd_open(1), 9, 0, 0)))
results["attach"] = str(in_child(lambda: syscall(101 if x86 else 117, 16, 1, 0, 0)))
results["seize"] = str(in_child(lambda: syscall(101 if x86 else 117, 0x4206, 1, 0, 0)))
results["read memory"] = str(in_child(lambda: syscall(310 if x86 else 270, 1, iov(there), 1, iov(there), 1, 0)))
results["write memory"] = str(in_child(lambda: syscall(311 if x86 else 271, 1, iov(there), 1, iov(there), 1, 0)))
results["priority"] = attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
results["affinity"] = attempt(lambda: os.sched_setaffinity(1, {0}))
results["scheduler"] = attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
results["limit"] = attempt(lambda: __import__("resource").prlimit(1, __import__("resource").RLIMIT_NOFILE, (1, 1)))
results["oom score"] = attempt(lambda: open("/proc/1/oom_score_adj", "w").write("1000\n"))
results["uid 0"] = attempt(lambda: os.setuid(0))
results["gid 0"] = attempt(lambda: os.setgid(0))
results["groups"] = attempt(lambda: os.setgroups([]))
# Pre-forked processes belong to the guest too, and must not reveal the secrets of earlier commands.
waiting = [p for p in os.listdir("/proc") if p.isdigit() and os.stat("/proc/" + p).st_uid == 0]
results["kill prefork"] = sorted({attempt(lambda: os.kill(int(p), 9)) for p in waiting})
for file in ("environ", "mem", "maps", "stack", "syscall", "auxv"):
    results["read %s of prefork" % file] = sorted({attempt(lambda: open("/proc/%s/%s" % (p, file), "rb").read(1)) for p in waiting})
results["list prefork directories"] = sorted({attempt(lambda: os.listdir("/proc/%s/%s" % (p, d))) for p in waiting for d in ("fd", "map_files", "root")})
report(results)
