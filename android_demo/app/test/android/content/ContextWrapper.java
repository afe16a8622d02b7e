package android.content;

import android.content.res.Resources;
import java.io.File;

public class ContextWrapper extends Context {
    private Context base;

    public void fakeAttach(Context base) {
        this.base = base;
    }

    @Override
    public Resources getResources() {
        return base.getResources();
    }

    @Override
    public File getFilesDir() {
        return base.getFilesDir();
    }

    @Override
    public File getCacheDir() {
        return base.getCacheDir();
    }

    @Override
    public ComponentName startService(Intent service) {
        return base.startService(service);
    }

    @Override
    public boolean stopService(Intent service) {
        return base.stopService(service);
    }
}
