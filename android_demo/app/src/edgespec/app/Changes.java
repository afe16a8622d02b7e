package edgespec.app;

import android.os.Handler;
import android.os.Looper;

/**
 * Tells the screen, on the main thread, that something it shows has changed. It does so a moment later,
 * so that many tokens are drawn at once, and does nothing while there is no screen.
 */
final class Changes implements Runnable {
    private static final int MOMENT_MS = 50;

    private final Handler main = new Handler(Looper.getMainLooper());
    private boolean pending;
    private Runnable watcher;

    /** Announces a change. Any thread may call it. */
    void tell() {
        synchronized (this) {
            if (pending) {
                return;
            }
            pending = true;
        }
        main.postDelayed(this, MOMENT_MS);
    }

    /** Sets what is run after changes, or null for nothing. Only the main thread may call it. */
    void watch(Runnable watcher) {
        this.watcher = watcher;
    }

    @Override
    public void run() {
        synchronized (this) {
            pending = false;
        }
        if (watcher != null) {
            watcher.run();
        }
    }
}
