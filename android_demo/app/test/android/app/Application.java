package android.app;

import android.content.ComponentName;
import android.content.Context;
import android.content.ContextWrapper;
import android.content.Intent;
import android.content.res.Resources;
import java.io.File;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;

public class Application extends ContextWrapper {
    /** Names of the running services. */
    public final Set<String> fakeServices = Collections.synchronizedSet(new HashSet<String>());
    private Resources resources;
    private File folder;

    /** Does what the system does before onCreate. */
    public void fakeStart(File folder, Resources resources) {
        this.folder = folder;
        this.resources = resources;
        onCreate();
    }

    /** Applies a new theme or font size. */
    public void fakeConfigure(Resources resources) {
        this.resources = resources;
    }

    public void onCreate() {
    }

    public Context getApplicationContext() {
        return this;
    }

    @Override
    public Resources getResources() {
        return resources;
    }

    @Override
    public File getFilesDir() {
        return folder;
    }

    @Override
    public File getCacheDir() {
        return folder;
    }

    @Override
    public ComponentName startService(Intent service) {
        fakeServices.add(service.fakeComponent().getSimpleName());
        return new ComponentName();
    }

    @Override
    public boolean stopService(Intent service) {
        return fakeServices.remove(service.fakeComponent().getSimpleName());
    }
}
