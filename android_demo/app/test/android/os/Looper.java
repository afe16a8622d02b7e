package android.os;

import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The main thread's queue. Whoever drives the app runs it; delays are not waited for. */
public final class Looper {
    private static final Looper MAIN = new Looper();

    private final LinkedBlockingQueue<Runnable> queue = new LinkedBlockingQueue<Runnable>();

    public static Looper getMainLooper() {
        return MAIN;
    }

    public void fakePost(Runnable task) {
        queue.add(task);
    }

    /** Runs the next task; waits so long for one. @return whether there was one */
    public boolean fakeRunOne(long waitMs) throws InterruptedException {
        Runnable task = queue.poll(waitMs, TimeUnit.MILLISECONDS);
        if (task != null) {
            task.run();
        }
        return task != null;
    }
}
