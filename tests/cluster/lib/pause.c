/* Holds a pod's namespaces: sleeps until it is told to end. */
#include <signal.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }

int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    /* PID 1 of pods that share their process namespace: leave no zombies. */
    signal(SIGCHLD, SIG_IGN);
    for (;;) pause();
}
