package android.os;

import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The main thread's queue. The test runs its tasks, without their delays. */
public final class Looper {
    public static final LinkedBlockingQueue<Runnable> FAKE_QUEUE = new LinkedBlockingQueue<>();

    public static Looper getMainLooper() { return new Looper(); }

    /** Waits for the next task and runs it; returns false if none has come in time. */
    public static boolean fakeRunOne(long waitMs) {
        try {
            Runnable task = FAKE_QUEUE.poll(waitMs, TimeUnit.MILLISECONDS);
            if (task != null) {
                task.run();
            }
            return task != null;
        } catch (InterruptedException error) {
            throw new AssertionError(error);
        }
    }
}
