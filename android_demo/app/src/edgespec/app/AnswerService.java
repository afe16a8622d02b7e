package edgespec.app;

import android.app.Service;
import android.content.Intent;
import android.os.IBinder;

/**
 * Runs while an answer comes and does nothing. An app without a screen or a service is frozen within
 * seconds; with a started service Android lets it work for about a minute more, which is what an answer
 * takes, and asks for no notification. After that the answer waits, and goes on when the user comes back.
 */
public final class AnswerService extends Service {
    @Override
    public int onStartCommand(Intent intent, int flags, int startId) {
        return START_NOT_STICKY;
    }

    @Override
    public IBinder onBind(Intent intent) {
        return null;
    }
}
