package edgespec;

/** Tells a working or waiting thread that the user wants to stop. */
final class StopFlag {
    private volatile boolean asked;

    void set(boolean asked) {
        this.asked = asked;
    }

    boolean isSet() { return asked; }

    /** Throws Cancelled if the user wants to stop. */
    void check() throws VerifierException.Cancelled {
        if (asked) {
            throw new VerifierException.Cancelled();
        }
    }

    /** Waits. Throws Cancelled as soon as the user wants to stop. */
    void sleep(long ms) throws VerifierException.Cancelled {
        long end = System.nanoTime() + ms * 1000000;
        for (long left = ms; left > 0; left = (end - System.nanoTime()) / 1000000) {
            check();
            try {
                Thread.sleep(Math.min(left, 50));
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new VerifierException.Cancelled();
            }
        }
        check();
    }
}
