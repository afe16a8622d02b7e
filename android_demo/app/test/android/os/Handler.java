package android.os;

public class Handler {
    private final Looper looper;

    public Handler(Looper looper) {
        this.looper = looper;
    }

    public final boolean postDelayed(Runnable task, long delayMs) {
        looper.fakePost(task);
        return true;
    }
}
