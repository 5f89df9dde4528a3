/* The command of the crash harness's jobs: notes its own start and end, independently of the spool.
 *
 *     crash_job FOLDER NAME HOLD CODES
 *
 * Each note is one line, appended with one write to FOLDER/log: WORD NAME ATTEMPT PID [NUMBER], where WORD is
 *
 *     start    it runs
 *     overlap  another run of the same job is alive (the kernel releases the lock of a process that is gone)
 *     crowd    another job is alive, in a spool that has room for one ("FOLDER/one" exists then)
 *     stopped  a signal asked it to stop; it leaves with 75
 *     end      it leaves by itself, with code NUMBER
 *
 * HOLD 1: it first waits until FOLDER/go-NAME (a FIFO) has something to read, which it leaves there; HOLD 2: it takes
 * no notice of the stop signal, so that only SIGTERM or SIGKILL ends it. CODES: the exit codes of attempt 1, 2, …
 * by commas; the last one holds for all further attempts.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static volatile sig_atomic_t asked;
static const char *name, *attempt;
static int log_fd;

static void ask(int number) { asked = number; }

static void note(const char *word, int number)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%s %s %s %d %d\n", word, name, attempt, getpid(), number);
    if (write(log_fd, line, length) != length)
        _exit(99);
}

int main(int argc, char **argv)
{
    char path[4096];
    sigset_t both, none;
    if (argc != 5 || !getenv("GPUSPOOL_ATTEMPT"))
        return 98;
    name = argv[2];
    attempt = getenv("GPUSPOOL_ATTEMPT");
    sigemptyset(&none);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR2);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, NULL);
    if (*argv[3] != '2') {
        signal(SIGUSR2, ask);
        signal(SIGTERM, ask);
    }
    snprintf(path, sizeof path, "%s/log", argv[1]);
    if ((log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) < 0)
        return 97;
    snprintf(path, sizeof path, "%s/lock-%s", argv[1], name);
    if (flock(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), LOCK_EX | LOCK_NB))
        note("overlap", 0);
    snprintf(path, sizeof path, "%s/one", argv[1]);
    int one = open(path, O_RDWR | O_CLOEXEC);
    if (one >= 0 && flock(one, LOCK_EX | LOCK_NB))
        note("crowd", 0);
    note("start", 0);
    if (*argv[3] != '0') {
        snprintf(path, sizeof path, "%s/go-%s", argv[1], name);
        struct pollfd go = {.fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), .events = POLLIN};
        while (!asked && !(ppoll(&go, 1, NULL, &none) > 0 && go.revents & POLLIN))
            ;
    }
    if (asked) {
        note("stopped", asked);
        return 75;
    }
    char *code = argv[4];
    for (int left = atoi(attempt) - 1; left > 0 && strchr(code, ','); left--)
        code = strchr(code, ',') + 1;
    note("end", atoi(code));
    return atoi(code);
}
