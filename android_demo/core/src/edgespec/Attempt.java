package edgespec;

import java.io.Closeable;
import java.io.IOException;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A network operation that may block: looking up a name, connecting, an HTTP request. It runs in a
 * thread of its own, so that the thread that waits for it can stop waiting at any time.
 */
abstract class Attempt<T> implements Callable<T> {
    /** Does the operation. */
    @Override
    public abstract T call() throws IOException;

    /**
     * Returns or throws what call does.
     *
     * @param what names in the message what has not answered in time
     * @throws VerifierException.Unavailable after timeoutMs milliseconds
     */
    T get(StopFlag stop, long timeoutMs, String what) throws IOException {
        FutureTask<T> task = new FutureTask<T>(this) {
            @Override
            protected void set(T result) {
                super.set(result);
                if (isCancelled()) {
                    discard(result);
                }
            }
        };
        Thread thread = new Thread(task, "edgespec-attempt");
        thread.setDaemon(true);
        thread.start();
        try {
            return await(task, stop, timeoutMs, what);
        } catch (ExecutionException error) {
            Throwable cause = error.getCause();
            throw cause instanceof IOException ? (IOException) cause : new IOException("it failed: " + cause, cause);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new VerifierException.Cancelled();
        } finally {
            task.cancel(false); // does nothing if the task is done
        }
    }

    private T await(FutureTask<T> task, StopFlag stop, long timeoutMs, String what)
            throws IOException, ExecutionException, InterruptedException {
        long end = System.nanoTime() + timeoutMs * 1000000;
        while (true) {
            try {
                return task.get(50, TimeUnit.MILLISECONDS);
            } catch (TimeoutException error) {
                boolean late = System.nanoTime() > end;
                if ((late || stop.isSet()) && task.cancel(false)) {
                    stop.check();
                    throw new VerifierException.Unavailable(
                            what + " has not answered for " + timeoutMs / 1000.0 + " s");
                }
            }
        }
    }

    private static void discard(Object result) {
        if (result instanceof Closeable) {
            try {
                ((Closeable) result).close();
            } catch (IOException error) {
                // nobody uses it any more
            }
        }
    }
}
