package android.app;

import android.content.ActivityNotFoundException;
import android.content.Context;
import android.content.Intent;
import android.os.Bundle;
import android.view.FakeMenu;
import android.view.Menu;
import android.view.MenuItem;
import android.view.View;

/** A window whose life cycle the test drives, in Android's order. */
public class Activity extends Context {
    public static final int RESULT_OK = -1;

    public View fakeContent;
    public String fakeTitle = "";
    public boolean fakeFinished;
    /** The last intent started for a result, and whether the phone has an app for it. */
    public Intent fakeAsked;
    public boolean fakeHasPicker = true;
    public final FakeMenu fakeMenu = new FakeMenu();
    private int asked;
    private Application application;

    public void fakeCreate(Application application, Bundle saved) {
        this.application = application;
        fakeAttach(application.getFilesDir(), application.getResources());
        onCreate(saved);
        onStart();
        if (saved != null) {
            fakeContent.fakeRestore(saved.fakeViews);
        }
        onCreateOptionsMenu(fakeMenu);
    }

    public void fakeStart() { onStart(); }

    public Bundle fakeStop() {
        Bundle state = new Bundle();
        onStop();
        onSaveInstanceState(state);
        return state;
    }

    /** Delivers the result of the app that was started. */
    public void fakeResult(int result, Intent data) { onActivityResult(asked, result, data); }
    public final Application getApplication() { return application; }
    protected void onCreate(Bundle saved) {}
    protected void onStart() {}
    protected void onStop() {}
    protected void onSaveInstanceState(Bundle state) { fakeContent.fakeSave(state.fakeViews); }
    public void setContentView(View view) { fakeContent = view; }
    public void setTitle(int id) { fakeTitle = getString(id); }
    public boolean onCreateOptionsMenu(Menu menu) { return true; }
    public boolean onOptionsItemSelected(MenuItem item) { return false; }
    public void onBackPressed() { fakeFinished = true; }

    public void startActivityForResult(Intent intent, int request) {
        if (!fakeHasPicker) {
            throw new ActivityNotFoundException();
        }
        fakeAsked = intent;
        asked = request;
    }

    protected void onActivityResult(int request, int result, Intent data) {}
}
