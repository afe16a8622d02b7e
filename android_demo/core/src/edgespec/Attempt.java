package edgespec;

import java.io.Closeable;
import java.io.IOException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * A network operation that may block: looking up a name, connecting, an HTTP request. It runs in a
 * thread of its own, so that the thread that waits for it can stop waiting at any time.
 */
abstract class Attempt<T> {
    private final CountDownLatch done = new CountDownLatch(1);
    private T found;
    private IOException failed;
    private boolean abandoned;

    /** Does the operation. */
    abstract T run() throws IOException;

    /**
     * Returns or throws what run does.
     *
     * @param what names in the message what has not answered in time
     * @throws VerifierException.Unavailable after timeoutMs milliseconds
     */
    T get(StopFlag stop, long timeoutMs, String what) throws IOException {
        Thread thread = new Thread("edgespec-attempt") {
            @Override
            public void run() {
                work();
            }
        };
        thread.setDaemon(true);
        thread.start();
        try {
            await(stop, timeoutMs, what);
        } catch (VerifierException error) {
            abandon();
            throw error;
        }
        if (failed != null) {
            throw failed;
        }
        return found;
    }

    private void await(StopFlag stop, long timeoutMs, String what) throws VerifierException {
        long end = System.nanoTime() + timeoutMs * 1000000;
        try {
            while (!done.await(50, TimeUnit.MILLISECONDS)) {
                stop.check();
                if (System.nanoTime() > end) {
                    throw new VerifierException.Unavailable(what + " has not answered for "
                            + timeoutMs / 1000.0 + " s");
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new VerifierException.Cancelled();
        }
    }

    private void work() {
        T result = null;
        try {
            result = run();
        } catch (IOException error) {
            failed = error;
        } catch (RuntimeException error) {
            failed = new IOException("it failed: " + error, error);
        }
        synchronized (this) {
            found = result;
            if (abandoned) {
                discard();
            }
        }
        done.countDown();
    }

    private synchronized void abandon() {
        abandoned = true;
        discard();
    }

    private void discard() {
        if (found instanceof Closeable) {
            try {
                ((Closeable) found).close();
            } catch (IOException error) {
                // nobody uses it any more
            }
        }
    }
}
