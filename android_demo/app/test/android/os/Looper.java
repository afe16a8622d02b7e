package android.os;

import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The main thread's queue. The test runs its tasks, without their delays. */
public final class Looper {
    private static final Looper MAIN = new Looper();

    private final LinkedBlockingQueue<Runnable> queue = new LinkedBlockingQueue<Runnable>();

    public static Looper getMainLooper() {
        return MAIN;
    }

    public void fakePost(Runnable task) {
        queue.add(task);
    }

    /** Waits for the next task and runs it; returns false if none has come in time. */
    public boolean fakeRunOne(long waitMs) throws InterruptedException {
        Runnable task = queue.poll(waitMs, TimeUnit.MILLISECONDS);
        if (task != null) {
            task.run();
        }
        return task != null;
    }
}
